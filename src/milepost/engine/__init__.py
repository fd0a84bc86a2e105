"""Tell the story of a save and of a resume in order; `checkpoint_engine` is where to start reading."""
