package dist

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestKrewManifestNamesEachArchive(t *testing.T) {
	archives := map[platform][]byte{}
	for _, p := range platforms {
		archives[p] = []byte("the archive for " + p.String())
	}
	data, err := krewManifest("0.1.0", "https://example.com/0.1.0/", archives)
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version, ShortDescription string
			Platforms                 []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
				Files            []struct{ From, To string }
			}
		}
	}
	if err := yaml.Unmarshal(data, &plugin); err != nil {
		t.Fatal(err)
	}
	// krew checks the following of a manifest.
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(plugin.Spec.Version) {
		t.Errorf("its version is %s", plugin.Spec.Version)
	}
	if plugin.Metadata.Name != "libra" || plugin.Spec.ShortDescription == "" || len(plugin.Spec.ShortDescription) > 50 {
		t.Errorf("it is %s: %q", plugin.Metadata.Name, plugin.Spec.ShortDescription)
	}
	found := map[platform]bool{}
	for _, k := range plugin.Spec.Platforms {
		p := platform{k.Selector.MatchLabels["os"], k.Selector.MatchLabels["arch"]}
		found[p] = true
		if want := fmt.Sprintf("%x", sha256.Sum256(archives[p])); k.SHA256 != want {
			t.Errorf("%s: the sum is %s, want %s", p, k.SHA256, want)
		}
		if want := "https://example.com/0.1.0/kubectl-libra_0.1.0_" + p.os + "_" + p.arch + ".tar.gz"; k.URI != want {
			t.Errorf("%s: it is at %s, want %s", p, k.URI, want)
		}
		if k.Bin != "kubectl-libra" || len(k.Files) != 2 {
			t.Errorf("%s: it runs %s of %v", p, k.Bin, k.Files)
		}
	}
	if len(found) != 4 || len(plugin.Spec.Platforms) != 4 {
		t.Errorf("its platforms are %v", found)
	}

	delete(archives, platforms[0])
	if _, err := krewManifest("0.1.0", "", archives); err == nil || !strings.Contains(err.Error(), platforms[0].String()) {
		t.Errorf("without an archive: %v", err)
	}
}
