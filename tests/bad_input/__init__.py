"""What users get wrong, and what interrupts them: each is one sentence, and loses nothing."""
