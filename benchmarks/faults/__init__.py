"""Programs that break palm on purpose and count what becomes of it; docs/reliability.md has their figures."""
