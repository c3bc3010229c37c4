package machine

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestObjects(t *testing.T) {
	const document = `
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: redis}
spec:
  template:
    spec:
      containers:
      - {name: redis, image: "redis:7.4.11-bookworm@sha256:c6eabf748fc7a61dbb5a705c78bcf3d6377b1127a97d0ce965c11c44ba46896f"}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: libra}
`
	got, err := objects(map[string]string{"redis": "dev.local/redis:1"}, []byte(document),
		func(o *unstructured.Unstructured) bool { return o.GetKind() != "InferenceService" })
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if strings.Count(text, "---\n") != 2 || !strings.Contains(text, "kind: Namespace") || strings.Contains(text, "InferenceService") {
		t.Errorf("kept is:\n%s", text)
	}
	if !strings.Contains(text, "image: dev.local/redis:1\n") || strings.Contains(text, "redis:7") {
		t.Errorf("images are not the machine's:\n%s", text)
	}
	if _, err := objects(nil, []byte("{"), func(*unstructured.Unstructured) bool { return true }); err == nil {
		t.Error("what is no object is taken")
	}
}
