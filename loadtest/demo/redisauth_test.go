package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/pool/redistest"
)

// A real Redis with these Secrets lets in each user that has one, and nobody else.
func TestRedisSecretsLetUsersIn(t *testing.T) {
	shipped, err := os.ReadFile(filepath.Join("../..", redisAuthManifests, redisUsersFile))
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := newRedisSecrets(string(shipped))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	byName := map[string]corev1.Secret{}
	for _, s := range secrets {
		byName[s.Name] = s
		for file, data := range s.Data {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	addr := redistest.FreeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	as := func(user, password string, ca []byte) *redis.Options {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		return &redis.Options{
			Addr: addr, Username: user, Password: password, MaxRetries: -1,
			TLSConfig: &tls.Config{RootCAs: roots, ServerName: "redis.libra-system.svc"},
		}
	}
	redistest.Run(t, as("", "", byName[redisTLSSecret].Data["ca.crt"]),
		"--bind", host, "--port", "0", "--tls-port", port, "--tls-auth-clients", "no", "--dir", dir, "--save", "",
		"--tls-cert-file", filepath.Join(dir, "tls.crt"), "--tls-key-file", filepath.Join(dir, "tls.key"), "--aclfile", filepath.Join(dir, redisUsersFile))
	ask := func(o *redis.Options) (string, error) {
		c := redis.NewClient(o)
		defer c.Close()
		return c.Do(t.Context(), "ACL", "WHOAMI").Text()
	}
	for user, namespace := range redisUsers {
		s := byName[redisSecretOf(user)]
		if s.Namespace != namespace || string(s.Data["username"]) != user || len(s.Data["password"]) < 20 {
			t.Errorf("the Secret of %s is %s/%s, for %q", user, s.Namespace, s.Name, s.Data["username"])
		}
		name, err := ask(as(user, string(s.Data["password"]), s.Data["ca.crt"]))
		// A user without permission for the command has been let in.
		if user == redisAdmin && name != user || user != redisAdmin && !redis.IsPermissionError(err) {
			t.Errorf("%s is %q: %v", user, name, err)
		}
		if _, err := ask(as(user, "another", s.Data["ca.crt"])); !redis.HasErrorPrefix(err, "WRONGPASS") {
			t.Errorf("%s with another password: %v", user, err)
		}
	}
	if _, err := ask(as("", "", byName[redisTLSSecret].Data["ca.crt"])); !redis.HasErrorPrefix(err, "NOAUTH") {
		t.Errorf("nobody: %v", err)
	}
	if _, err := newRedisSecrets(strings.Replace(string(shipped), "user agent ", "user another ", 1)); err == nil || !strings.Contains(err.Error(), `"user agent "`) {
		t.Errorf("without a line of the agent: %v", err)
	}
}

// Secrets that exist on the cluster stay: Redis and the parts have read them.
func TestRedisSecretsAreMadeOnce(t *testing.T) {
	t.Chdir("../..")
	for name, there := range map[string]bool{"none is there": false, "all are there": true} {
		t.Run(name, func(t *testing.T) {
			script := ""
			if there {
				script = "echo secret/there"
			}
			var d demo
			d.kubectl, _ = fakeKubectl(t, script)
			dir := filepath.Join(t.TempDir(), "libra")
			var k kustomization
			if err := d.secureRedis(t.Context(), dir, &k); err != nil {
				t.Fatal(err)
			}
			if err := (images{}).write(dir, libraManifests, k); err != nil {
				t.Fatal(err)
			}
			var got kustomization
			data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
			if err == nil {
				err = yaml.UnmarshalStrict(data, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			root, err := relativePath(dir, ".")
			if err != nil {
				t.Fatal(err)
			}
			want := kustomization{
				APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization",
				Resources:  []string{filepath.Join(root, libraManifests)},
				Components: []string{filepath.Join(root, redisAuthManifests)},
			}
			if !there {
				want.Resources = append(want.Resources, "secrets.yaml")
				want.SortOptions = &sortOptions{"legacy"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			info, err := os.Stat(filepath.Join(dir, "secrets.yaml"))
			if there != os.IsNotExist(err) || !there && info.Mode().Perm() != 0o600 {
				t.Errorf("secrets.yaml: %v, %v", info, err)
			}
		})
	}
}

func TestRedisCLIHasNoPasswordInItsArguments(t *testing.T) {
	stdin := filepath.Join(t.TempDir(), "stdin")
	k, log := fakeKubectl(t, `case "$*" in *"get -o json"*) echo '{"data":{"password":"aHVudGVyMg=="}}';; *redis-cli*) cat >`+stdin+`; echo 1;; esac`)
	d := demo{kubectl: k, options: options{redisAuth: true}}
	var keys int
	if err := d.redis(t.Context(), &keys, "DEL", "key"); err != nil || keys != 1 {
		t.Fatalf("%d keys, %v", keys, err)
	}
	read, err := os.ReadFile(stdin)
	if err != nil || string(read) != "hunter2\n" {
		t.Errorf("it reads %q, %v", read, err)
	}
	calls, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(calls), "hunter2") || !strings.Contains(string(calls), "--tls --cacert /etc/libra/tls/ca.crt --user admin --askpass --json DEL key\n") {
		t.Errorf("%v, it was called with:\n%s", err, calls)
	}
}

func TestTheActivatorIsToldOfRedisAsTheDocsSay(t *testing.T) {
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Tell the activator\n")
	_, block, _ := strings.Cut(section, "```yaml\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !closed {
		t.Fatal("docs/redis.md does not tell it")
	}
	var want struct {
		Spec struct{ Template struct{ Spec any } }
	}
	if err := yaml.Unmarshal([]byte(block), &want); err != nil {
		t.Fatal(err)
	}
	pod := applycorev1.PodSpec().WithContainers(applycorev1.Container().WithName(swap.Container))
	tellOfRedis(pod)
	data, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Spec.Template.Spec, got); diff != "" {
		t.Errorf("(-docs +install):\n%s", diff)
	}
}
