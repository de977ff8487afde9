"""The simulated accelerator: a device for torch whose streams run in virtual time, and which finds races."""
