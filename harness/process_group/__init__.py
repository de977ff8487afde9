"""Process groups in Python: c10d's methods, and what each collective does to the tensors of all ranks."""
