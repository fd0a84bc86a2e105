"""Show that a killed and resumed run ends with the same bits: algorithm x environment x vector env x kill moment."""
