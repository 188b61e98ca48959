"""The Mini suite: small tasks on real data that are prepared from installed packages, offline, in seconds."""
