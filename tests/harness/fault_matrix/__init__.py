"""Every storage call of every verb, with everything that can go wrong with it."""
