"""One file an architecture, each reading like its paper. Know layers; not files, slots or schedules."""
