"""From a Recording to filtered blocks at the rate of the model, and the quality of its channels."""
