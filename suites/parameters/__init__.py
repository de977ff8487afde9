"""What a parameter is once it is sharded: layout, registration, sharing, extensions, and meshes of its own."""
