"""What is known of each model family: one data file a family, and the few modules that read them."""
