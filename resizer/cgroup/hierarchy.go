package cgroup

// Hierarchy is where a v1 controller is mounted below root, alone or with others.
func Hierarchy(root, controller string) (string, error) { return findHierarchy(root, controller) }
