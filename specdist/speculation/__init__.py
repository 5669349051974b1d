"""The mathematics of speculation: trees, sampling, verification rules, statistics, control.

Pure: randomness and time are arguments, nothing here knows an engine, a network or Ray.
"""
