"""What users do, run on a real cluster: the tests here and, in `cluster`, the cluster they run on."""
