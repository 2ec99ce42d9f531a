"""A fleet of GPUs through a day: what a policy gives in utilisation, refusals and TTFA."""
