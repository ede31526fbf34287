"""Model families: one data file each, and the modules that read them."""
