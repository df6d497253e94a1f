"""`unlazy.check_scaling`: does a network learn features at every width and depth, and which module prevents it?

check         the check: short runs at several sizes, then the rules
networks      building, training and measuring networks of several sizes
slopes        exponents of the width
rules, depth  the local rules of width [T1, T2] and depth [T4]
exponents     the exponents, with the verdict in words (texts); result adds files and figures
report        figures and the page
scaled, axes  `unlazy.scaled`: rates of every width from those of one width, by the role of every parameter
sweep         `unlazy.sweep_rates`: the best learning rate at every width [T3]
options       options
"""
