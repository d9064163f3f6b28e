"""`kubectl millrace`: what people do to a service at night. It asks and writes through the kubectl they have.

So every way to sign in that kubectl has works here too. It knows of the operator only the pure parts of its
resource, and loads nothing heavy: it must answer at once.
"""
