package cluster

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/layout"
)

func TestTheOnlyNodeIsTheControlNodeWithoutWorkers(t *testing.T) {
	m := alone(testLayout)
	if m.name() != NodeName || m.podCIDR() != podCIDR || m.ip() != nodeIP ||
		m.clusterCIDR() != podCIDR || m.cgroup() != cgroupName || m.layout != testLayout {
		t.Errorf("the only node is %+v", m)
	}
	if said := fmt.Sprint(components(m, "")); strings.Contains(said, "admission-plugins") || strings.Contains(said, "node-labels") {
		t.Errorf("a box of one node has what is for several: %s", said)
	}
	if settings := kubeletSettings(m); settings["registerWithTaints"] != nil {
		t.Error("functions have no place on a box of one node")
	}
}

func TestMembersHaveNothingInCommon(t *testing.T) {
	members := membersOf(testLayout, MostNodes)
	seen := map[string]string{}
	for _, m := range members {
		for what, value := range map[string]string{
			"name": m.name(), "pods": m.podCIDR(), "address": m.ip(), "link": m.linkName(), "link's addresses": m.linkCIDR(),
			"cgroup": m.cgroup(), "run": m.layout.Run(), "logs": m.layout.Logs(), "kubelet": m.own("kubelet"),
		} {
			key := what + " " + value
			if other, taken := seen[key]; taken {
				t.Errorf("%s of %s is %s's as well: %s", what, m.name(), other, value)
			}
			seen[key] = m.name()
		}
		if m.layout.PKI() != testLayout.PKI() {
			t.Errorf("%s has certificates of its own in %s", m.name(), m.layout.PKI())
		}
	}
	if len(members) != MostNodes || members[0].name() != NodeName || members[1].name() != "w1" {
		t.Errorf("%d members, first %s and %s", len(members), members[0].name(), members[1].name())
	}
}

func TestWorkersDivideTheCPUs(t *testing.T) {
	for count := 1; count <= 64; count++ {
		var machine []int
		for cpu := range count {
			machine = append(machine, 2*cpu) // some of a machine's CPUs
		}
		for nodes := 2; nodes <= min(MostNodes, count+1); nodes++ {
			var dealt []int
			for _, m := range membersOf(testLayout, nodes)[1:] {
				own := m.cpus(machine)
				if len(own) < count/(nodes-1) || len(own) > count/(nodes-1)+1 {
					t.Fatalf("%s has the CPUs %v of %v, with %d workers", m.name(), own, machine, nodes-1)
				}
				dealt = append(dealt, own...)
			}
			if diff := cmp.Diff(machine, dealt); diff != "" {
				t.Fatalf("%d CPUs of %d nodes (-machine's +workers'):\n%s", count, nodes, diff)
			}
		}
	}
}

func TestConfigsOfAWorker(t *testing.T) {
	w := membersOf(testLayout, 3)[2]
	data, err := kubeletConfig(w)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"cgroupRoot":         "/",
		"podLogsDir":         `/st"ate/logs/w2/pods`,
		"tlsCertFile":        `/st"ate/pki/kubelet-serving-w2.crt`,
		"clusterDNS":         []any{nodeIP},
		"registerWithTaints": nil,
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	args := strings.Join(kubelet(w).args, " ")
	for _, want := range []string{"--hostname-override=w2", "--node-ip=10.244.2.1", "kubelet-w2.kubeconfig", "zone-2"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in the kubelet's arguments %s", want, args)
		}
	}
	if args := strings.Join(kubeProxy(w).args, " "); !strings.Contains(args, "--cluster-cidr="+podsCIDR) {
		t.Errorf("kube-proxy translates the addresses of other nodes' pods: %s", args)
	}
	want := []string{"node", "containerd", "kubelet", "kube-proxy"}
	if diff := cmp.Diff(want, w.componentNames()); diff != "" {
		t.Errorf("componentNames() (-want +got):\n%s", diff)
	}
}

func TestTheControlNodeOfSeveralIsTainted(t *testing.T) {
	control := membersOf(testLayout, 2)[0]
	settings := kubeletSettings(control)
	if diff := cmp.Diff([]object{{"key": ControlTaint, "effect": "NoSchedule"}}, settings["registerWithTaints"]); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	// Namespaces with these annotations tolerate the taint and select the node.
	annotations := fmt.Sprint(PlatformAnnotations(2))
	for _, want := range []string{ControlTaint, controlLabel} {
		if !strings.Contains(annotations, want) {
			t.Errorf("no %s in %s", want, annotations)
		}
	}
	if !strings.Contains(control.labels(), controlLabel+"=") {
		t.Errorf("the labels are %s", control.labels())
	}
	if PlatformAnnotations(1) != nil {
		t.Error("namespaces of a box of one node are annotated")
	}
}

func TestNodesOfABox(t *testing.T) {
	c := Cluster{Layout: layout.Layout{State: t.TempDir()}}
	if err := os.MkdirAll(c.Layout.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeNodes(c.Layout, 3); err != nil {
		t.Fatal(err)
	}
	for name, number := range map[string]int{"": 0, NodeName: 0, "w1": 1, "w2": 2} {
		if m, err := c.member(name); err != nil || m.number != number || m.of != 3 {
			t.Errorf("%q is %+v, %v", name, m, err)
		}
	}
	if _, err := c.member("w3"); err == nil || !strings.Contains(err.Error(), "box, w1, w2") {
		t.Errorf("got %v, want an error that names the nodes", err)
	}
	if _, err := c.worker(NodeName); err == nil {
		t.Error("the control node is taken for a worker")
	}
	if err := os.WriteFile(nodesPath(c.Layout), []byte("many"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.members(); err == nil || !strings.Contains(err.Error(), "many") {
		t.Errorf("got %v, want an error that has what is there", err)
	}
}

func TestImagesOfThePlatformAreOnTheControlNode(t *testing.T) {
	members := membersOf(testLayout, 2)
	for image, worker := range map[string]bool{"pause": true, "knative-queue": true, "libra-agent": true, "libra-fn-compression": true, "libra-predictor": false, "pilot": false} {
		if members[1].runs(image) != worker || !members[0].runs(image) {
			t.Errorf("%s: on a worker %t, on the control node %t", image, members[1].runs(image), members[0].runs(image))
		}
	}
}
