"""Answer trainers and samplers: what the core decides, this carries out. `serve` runs it, `Server` is one within a process."""

from __future__ import annotations
