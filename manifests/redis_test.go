package manifests

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

const redisAuth = "components/redis-auth"

// parts are the parts in the manifests that use Redis, with the names of their users.
var parts = map[string]string{"libra-resizer": "controller", "libra-agent": "agent", "libra": "predictor", "libra-predictor": "predictor", "libra-scheduler": "scheduler"}

// Without its Secret, a part starts and talks to Redis without a user.
func TestPartsMountTheirCredentials(t *testing.T) {
	for name, user := range parts {
		pod := podNamed(t, all(t), name)
		folder := lastOf(t, pod, "--redis-credentials")
		volume := mountedAt(t, pod, folder)
		if volume.Secret == nil || volume.Secret.SecretName != "libra-redis-"+user || volume.Secret.Optional == nil || !*volume.Secret.Optional {
			t.Errorf("%s has in %s %+v, want the optional Secret libra-redis-%s", name, folder, volume, user)
		}
	}
}

func TestRedisAuthIsWhereThePartsLook(t *testing.T) {
	objects := patched(t)
	redis := podNamed(t, objects, "redis")
	for name := range parts {
		address := lastOf(t, podNamed(t, objects, name), "--redis-addr")
		if want := "rediss://" + redisconn.DefaultAddr; address != want {
			t.Errorf("%s looks for Redis at %s, want %s", name, address, want)
		}
	}
	if port := lastOf(t, redis, "--tls-port"); port != fmt.Sprint(redis.Spec.Containers[0].Ports[0].ContainerPort) {
		t.Errorf("Redis listens on %s", port)
	}
}

// A real Redis, with the arguments and the users of the manifests, serves those users and nobody
// else.
func TestRedisAuthRuns(t *testing.T) {
	redis := podNamed(t, patched(t), "redis")
	ca, tls, acl := redistest.NewCA(t), t.TempDir(), t.TempDir()
	ca.Issue(t, tls)
	users, err := os.ReadFile(redisAuth + "/users.acl")
	if err != nil {
		t.Fatal(err)
	}
	// As in docs/redis.md.
	password := "of the agent"
	users = []byte(strings.Replace(string(users), "user agent ", fmt.Sprintf("user agent #%x ", sha256.Sum256([]byte(password))), 1))
	write(t, filepath.Join(acl, "users.acl"), users)

	addr := redistest.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Clone(redis.Spec.Containers[0].Args)
	for i, arg := range args {
		for path, dir := range map[string]string{"/etc/libra/tls": tls, "/etc/libra/acl": acl} {
			if strings.HasPrefix(arg, path+"/") {
				mountedAt(t, redis, path)
				args[i] = dir + strings.TrimPrefix(arg, path)
			}
		}
		if i > 0 && args[i-1] == "--tls-port" {
			args[i] = port
		}
	}
	redistest.Run(t, ca.Options(t, addr), append(args, "--dir", t.TempDir())...)

	credentials := t.TempDir()
	write(t, filepath.Join(credentials, "ca.crt"), ca.PEM)
	ask := func(address string) error {
		server, err := redisconn.Parse(address, credentials)
		if err != nil {
			t.Fatal(err)
		}
		client := server.NewClient(redisconn.Options{Connections: 1, Timeout: time.Second})
		defer client.Close()
		return client.Time(t.Context()).Err()
	}
	if err := ask("rediss://" + addr); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("nobody is served: %v", err)
	}
	write(t, filepath.Join(credentials, "username"), []byte("agent"))
	write(t, filepath.Join(credentials, "password"), []byte(password))
	if err := ask("rediss://" + addr); err != nil {
		t.Errorf("the agent is not served: %v", err)
	}
	if err := ask("redis://" + addr); err == nil {
		t.Error("the agent is served without TLS")
	}
	write(t, filepath.Join(credentials, "username"), []byte("controller"))
	if err := ask("rediss://" + addr); err == nil {
		t.Error("a user is served that has no password")
	}
}

// The patch of docs/sizing.md finds maxmemory by its place, and leaves the container more.
func TestMoreMemoryForRedis(t *testing.T) {
	page, err := os.ReadFile("../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Patches []struct{ Patch string }
	}
	if err := sigsyaml.Unmarshal(yamlOfDocs.FindSubmatch(page)[1], &k); err != nil {
		t.Fatal(err)
	}
	operations, err := sigsyaml.YAMLToJSON([]byte(k.Patches[0].Patch))
	if err != nil {
		t.Fatal(err)
	}
	change, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		t.Fatal(err)
	}
	objects := rendered(t, "base")
	i := slices.IndexFunc(objects, func(o object) bool { return o.Kind == "Deployment" && o.Metadata.Name == "redis" })
	if objects[i].whole, err = change.Apply(objects[i].whole); err != nil {
		t.Fatal(err)
	}
	redis := podNamed(t, objects, "redis")
	most, limit := lastOf(t, redis, "--maxmemory"), redis.Spec.Containers[0].Resources.Limits.Memory()
	if most != "448mb" || limit.Value() != 448<<20*3/2 {
		t.Errorf("Redis has maxmemory %s and %v, want 448mb and half as much again", most, limit)
	}
}

// patched returns the objects of base, the plain predictor and the scheduler, patched by the component.
func patched(t *testing.T) []object {
	t.Helper()
	objects := rendered(t, "base", "predictor-plain", "scheduler")
	k, err := readKustomization(redisAuth)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range k.Patches {
		i := slices.IndexFunc(objects, func(o object) bool { return o.Kind == p.Target.Kind && o.Metadata.Name == p.Target.Name })
		if i < 0 {
			t.Fatalf("%s changes %+v, which there is not", redisAuth, p.Target)
		}
		data, err := os.ReadFile(filepath.Join(redisAuth, p.Path))
		if err != nil {
			t.Fatal(err)
		}
		operations, err := sigsyaml.YAMLToJSON(data)
		if err != nil {
			t.Fatalf("%s: %v", p.Path, err)
		}
		change, err := jsonpatch.DecodePatch(operations)
		if err != nil {
			t.Fatalf("%s: %v", p.Path, err)
		}
		if objects[i].whole, err = change.Apply(objects[i].whole); err != nil {
			t.Fatalf("%s: %v", p.Path, err)
		}
	}
	return objects
}

func podNamed(t *testing.T, objects []object, name string) corev1.PodTemplateSpec {
	t.Helper()
	i := slices.IndexFunc(objects, func(o object) bool {
		return o.Metadata.Name == name && slices.Contains([]string{"Deployment", "DaemonSet", "InferenceService"}, o.Kind)
	})
	if i < 0 {
		t.Fatalf("nothing with pods is called %s", name)
	}
	pod, err := podOf(objects[i])
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// lastOf returns the last value of an option, whether in the same argument or in the next.
func lastOf(t *testing.T, pod corev1.PodTemplateSpec, option string) string {
	t.Helper()
	value := ""
	args := pod.Spec.Containers[0].Args
	for i, arg := range args {
		if with, ok := strings.CutPrefix(arg, option+"="); ok {
			value = with
		} else if arg == option && i+1 < len(args) {
			value = args[i+1]
		}
	}
	if value == "" {
		t.Fatalf("there is no %s in %q", option, args)
	}
	return value
}

func mountedAt(t *testing.T, pod corev1.PodTemplateSpec, path string) corev1.Volume {
	t.Helper()
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		for _, volume := range pod.Spec.Volumes {
			if mount.MountPath == path && mount.ReadOnly && volume.Name == mount.Name {
				return volume
			}
		}
	}
	t.Fatalf("nothing is mounted at %s, read-only", path)
	return corev1.Volume{}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
