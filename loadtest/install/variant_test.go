//go:build install

package install

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	without = flag.String("without", "", "what the box lacks: kserve, or nothing")
	ingress = flag.String("ingress", "istio", "Knative's ingress on the box: istio or kourier")
)

// gateways has the Service through which requests come from outside, by ingress.
var gateways = map[string]client.ObjectKey{
	"istio":   {Namespace: "istio-system", Name: "knative-gateway-istio"},
	"kourier": {Namespace: "kourier-system", Name: "kourier"},
}

// moved is how long the report may take to show what was borrowed: it is a mean over minutes, and written every ten
// seconds.
const moved = 2 * time.Minute

// variant returns the name of the cluster in the results.
func variant() string {
	if *without == "" {
		return *ingress
	}
	return *ingress + " without " + *without
}

// gatewayURL returns the URL at which the cluster's ingress takes requests.
func (u *user) gatewayURL() string {
	u.Helper()
	var gateway corev1.Service
	key, ok := gateways[*ingress]
	if !ok {
		u.Fatalf("-ingress is %q, want one of %q", *ingress, slices.Sorted(maps.Keys(gateways)))
	}
	if err := u.kube.Get(u.Context(), key, &gateway); err != nil {
		u.Fatalf("the gateway of -ingress %s: %v", *ingress, err)
	}
	return "http://" + gateway.Spec.ClusterIP
}

// typesInstall types the commands of the page that install Libra on a cluster such as this one.
func (u *user) typesInstall() {
	u.Helper()
	commands := u.marked("install")
	if *without == "kserve" {
		commands = inPlaceOf(u, commands, kserveFile, u.marked("install without KServe"))
	}
	for _, command := range commands {
		u.sh(command)
	}
}

// inPlaceOf replaces the command that names a file by the only other command.
func inPlaceOf(u *user, commands []string, file string, other []string) (all []string) {
	u.Helper()
	if len(other) != 1 {
		u.Fatalf("%s has %q in place of %s, want one command", page, other, file)
	}
	found := 0
	for _, command := range commands {
		if strings.Contains(command, file) {
			command = other[0]
			found++
		}
		all = append(all, command)
	}
	if found != 1 {
		u.Fatalf("%s names %s %d times among %q, want once", page, file, found, commands)
	}
	return all
}

// lacks fails the test unless the cluster lacks everything that the variant and every box do without.
func (u *user) lacks() {
	u.Helper()
	groups := []string{"monitoring.coreos.com"} // of the Prometheus Operator
	if *without == "kserve" {
		groups = append(groups, "serving.kserve.io")
	}
	if *ingress != "istio" {
		groups = append(groups, "gateway.networking.k8s.io", "networking.istio.io")
	}
	var definitions metav1.PartialObjectMetadataList
	definitions.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	if err := u.kube.List(u.Context(), &definitions); err != nil {
		u.Fatal(err)
	}
	for _, d := range definitions.Items {
		for _, group := range groups {
			if strings.HasSuffix(d.Name, "."+group) {
				u.Fatalf("the cluster has the definition %s, and is to be without %s", d.Name, group)
			}
		}
	}
}

// awaitBorrowed waits until the report of the functions shows CPU that they used beyond their limits.
func (u *user) awaitBorrowed() {
	u.Helper()
	const command = "kubectl -n " + samples + " get functionreport functions -o jsonpath='{.status.total.borrowed.cpu}'"
	u.until(moved, "CPU borrowed", func() error {
		out, err := u.try(command)
		if err != nil || out == "" {
			return fmt.Errorf("the report says %q (%v)", out, err)
		}
		u.Logf("$ %s\n%s", command, out)
		return nil
	})
}
