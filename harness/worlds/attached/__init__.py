"""The attached world: ranks that a launcher such as torchrun has started, on one machine or several."""
