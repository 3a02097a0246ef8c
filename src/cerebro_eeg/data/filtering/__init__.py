"""From a Recording to filtered blocks at the rate of the model, and what is wrong with its channels."""
