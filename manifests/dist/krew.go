package dist

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

const krewFile = "krew/libra.yaml"

// krewManifest returns the plugin's krew manifest for the archives of all platforms.
func krewManifest(version, downloads string, archives map[platform][]byte) ([]byte, error) {
	var downloadable []map[string]any
	for _, p := range platforms {
		data, ok := archives[p]
		if !ok {
			return nil, fmt.Errorf("%s: there is no archive for %s", krewFile, p)
		}
		downloadable = append(downloadable, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"os": p.os, "arch": p.arch}},
			"uri":      strings.TrimSuffix(downloads, "/") + "/" + archiveName(version, p),
			"sha256":   fmt.Sprintf("%x", sha256.Sum256(data)),
			"bin":      pluginName,
			"files":    []map[string]any{{"from": pluginName, "to": "."}, {"from": "LICENSE", "to": "."}},
		})
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]any{"name": strings.TrimPrefix(pluginName, "kubectl-")},
		"spec": map[string]any{
			"version":          "v" + version,
			"homepage":         "https://libra.dev/libra",
			"shortDescription": "See what Libra lends to Knative functions",
			"description":      "See what Libra lends to each Knative function and why, change how far it goes, and remove it.\n",
			"platforms":        downloadable,
		},
	})
}
