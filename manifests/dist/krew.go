package dist

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

const krewFile = "krew/libra.yaml"

// krewPlugin is what krew's index has of a plugin.
type krewPlugin struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   krewMetadata `json:"metadata"`
	Spec       krewSpec     `json:"spec"`
}

type krewMetadata struct {
	Name string `json:"name"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
	Files    []krewFiles  `json:"files"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type krewFiles struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// krewManifest is that of the plugin, with the archives as they are by platform.
func krewManifest(version, downloads string, archives map[platform][]byte) ([]byte, error) {
	plugin := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   krewMetadata{Name: strings.TrimPrefix(pluginName, "kubectl-")},
		Spec: krewSpec{
			Version:          "v" + version,
			Homepage:         "https://libra.dev/libra",
			ShortDescription: "See what Libra lends to Knative functions",
			Description:      "See what Libra lends to each Knative function and why, change how far it goes, and take it off.\n",
		},
	}
	for _, p := range platforms {
		data, ok := archives[p]
		if !ok {
			return nil, fmt.Errorf("%s: there is no archive for %s", krewFile, p)
		}
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, krewPlatform{
			Selector: krewSelector{map[string]string{"os": p.os, "arch": p.arch}},
			URI:      strings.TrimSuffix(downloads, "/") + "/" + archiveName(version, p),
			SHA256:   fmt.Sprintf("%x", sha256.Sum256(data)),
			Bin:      pluginName,
			Files:    []krewFiles{{pluginName, "."}, {"LICENSE", "."}},
		})
	}
	return yaml.Marshal(plugin)
}
