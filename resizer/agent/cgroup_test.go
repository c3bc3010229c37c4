package agent

import "libra.dev/libra/resizer/cgroup/cgrouptest"

const id = "8d3c0f5a9b"

var (
	tree   = cgrouptest.Tree
	v2Tree = cgrouptest.V2
)
