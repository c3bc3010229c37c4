package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/loadtest/box/layout"
)

func testMachine(t *testing.T) Machine {
	return Machine{
		Root: t.TempDir(), Layout: layout.Layout{Cache: "/opt/box", State: "/var/lib/box"},
		Kubelet: "/usr/local/bin/kubelet", Runtime: "/usr/bin/crun",
	}
}

// A machine has the configuration of the kubelet, containerd and systemd, and the kubelet is
// like users' own.
func TestMachineWrite(t *testing.T) {
	m := testMachine(t)
	if err := m.Write(time.Now()); err != nil {
		t.Fatal(err)
	}
	for path, wants := range map[string][]string{
		kubeletConfigPath(m.Layout):                               {"cgroupDriver: systemd", "cpuManagerPolicy: static"},
		containerdConfigPath(m.Layout):                            {`BinaryName = "/usr/bin/crun"`, "SystemdCgroup = true"},
		filepath.Join(unitsDir, "kubelet.service"):                {"ExecStart=@/usr/local/bin/kubelet \"kubelet\"", "Restart=always"},
		filepath.Join(unitsDir, "kube-scheduler.service"):         {"ExecStartPre=/bin/sh -c 'until curl"},
		filepath.Join(unitsDir, "multi-user.target.d/libra.conf"): {"kubelet.service", networkUnit + ".service"},
		m.Layout.Kubeconfig():                                     {apiServerURL},
	} {
		data, err := os.ReadFile(filepath.Join(m.Root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s has no %q:\n%s", path, want, data)
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(m.Root, kubeletConfigPath(m.Layout)))
	if err != nil {
		t.Fatal(err)
	}
	for _, boxs := range []string{"cgroupRoot", "failCgroupV1", "protectKernelDefaults"} {
		if strings.Contains(string(data), boxs) {
			t.Errorf("the kubelet has the box's %s", boxs)
		}
	}
	// The box's own kubelet is configured differently.
	if box, err := kubeletConfig(alone(m.Layout)); err != nil || !strings.Contains(string(box), "cgroupDriver: cgroupfs") {
		t.Errorf("the box's kubelet: %s, %v", box, err)
	}
}

// The script starts the store before whatever needs it, and ends everything that it started.
func TestMachinePrepare(t *testing.T) {
	script := string(testMachine(t).Prepare("/opt/images", "/opt/objects.yaml"))
	at := 0
	for _, next := range []string{"exec -a etcd", "etcd is not ready", "exec -a kube-apiserver", "images import", "kubectl apply --server-side -f /opt/objects.yaml", "kill $pid"} {
		found := strings.Index(script[at:], next)
		if found < 0 {
			t.Fatalf("after %d bytes there is no %q in:\n%s", at, next, script)
		}
		at += found
	}
	if started, noted := strings.Count(script, "exec -a"), strings.Count(script, "begun=\"$! $begun\""); started != 3 || noted != started {
		t.Errorf("%d are started, and %d are ended", started, noted)
	}
}
