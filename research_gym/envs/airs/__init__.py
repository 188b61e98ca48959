"""The suite AIRS: AIRS-Bench's tasks on their own data sets, in our words, with hidden labels."""
