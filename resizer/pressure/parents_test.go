package pressure

import (
	"strings"
	"testing"

	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// Kubelets name the cgroups of pods by their driver, and by their own cgroup root.
func TestPodsOfEveryLayoutAreBystanders(t *testing.T) {
	for name, pods := range map[string][]string{
		"cgroupfs":               {"kubepods/pod1", "kubepods/burstable/pod2", "kubepods/besteffort/pod3"},
		"cgroupfs below a root":  {"kubelet/kubepods/pod1", "kubelet/kubepods/burstable/pod2", "kubelet/kubepods/besteffort/pod3"},
		"systemd":                systemdPods("kubepods.slice/kubepods"),
		"systemd below a root":   systemdPods("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods"), // as kind has it
		"systemd, two of a root": systemdPods("a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods"),
	} {
		t.Run(name, func(t *testing.T) {
			tree := map[string]string{"cgroup.controllers": "cpu memory\n", "system.slice/x.slice/cpu.pressure": pressureText("0")}
			for _, pod := range pods {
				tree[pod+"/cpu.pressure"] = pressureText("0")
			}
			r := newReader(t, cgrouptest.Tree(t, tree), t.TempDir(), none)
			if got := r.read(0).Pods; got != len(pods) {
				t.Errorf("%d bystanders are seen, want %d", got, len(pods))
			}
		})
	}
}

// systemdPods returns a pod of each class as the systemd driver makes them. parent is the path of their
// slice, followed by its name without the ending, with which the names of the slices below begin.
func systemdPods(parent string) []string {
	name := parent[strings.LastIndex(parent, "/")+1:]
	return []string{
		parent + "-pod1.slice",
		parent + "-burstable.slice/" + name + "-burstable-pod2.slice",
		parent + "-besteffort.slice/" + name + "-besteffort-pod3.slice",
	}
}

// Seeing no bystanders where they could not be found would let functions take all of the node.
func TestNoCgroupsOfPodsAreAnError(t *testing.T) {
	root := cgrouptest.Tree(t, map[string]string{
		"cgroup.controllers":                "cpu memory\n",
		"machine.slice/pod1/cpu.pressure":   pressureText("0"),
		"1/2/3/4/kubepods/pod/cpu.pressure": pressureText("0"),
	})
	r := newReader(t, root, t.TempDir(), none)
	if _, err := r.node.Read(r.now, everything); err == nil || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "kubepods.slice") {
		t.Fatalf("the error is %v, want one that names %s and kubepods.slice", err, root)
	}

	write(t, root, "kubepods/pod1/cpu.pressure", pressureText("0"))
	if _, err := r.node.Read(r.now.Add(tick), everything); err == nil {
		t.Error("all cgroups are gone through again in the next reading")
	}
	if got := r.read(listEvery).Pods; got != 1 {
		t.Errorf("%d bystanders are seen once there are cgroups of pods, want 1", got)
	}
}
