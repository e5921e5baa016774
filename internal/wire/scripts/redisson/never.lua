-- Of a set of several nodes, which there is not in this format.
return -1
