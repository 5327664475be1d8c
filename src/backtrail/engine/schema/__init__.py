"""Classes as data: the registry of named classes, their versions and their forms."""
