"""Many runs in one folder: each trained by a process of its own, once, whatever happens in between."""
