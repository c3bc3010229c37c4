package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/redisconn"
)

const (
	// redisAuthManifests give Redis TLS and users. Their Secrets are made here, as docs/redis.md says.
	redisAuthManifests = "manifests/components/redis-auth"
	redisUsersFile     = "users.acl"
	redisUsersSecret   = "libra-redis-acl"
	redisTLSSecret     = "libra-redis-tls"
	redisTLSAddress    = "rediss://" + redisconn.DefaultAddr
	// clusterDomain is the box's, for clients outside pods, which have no search list.
	clusterDomain    = "cluster.local"
	redisCredentials = "/etc/libra/redis"

	// redisAdmin may do everything in Redis, for inspection and tests.
	redisAdmin      = "admin"
	redisAdminRules = "on ~* &* +@all"

	// certificateValidity outlives any box.
	certificateValidity = 10 * 365 * 24 * time.Hour
)

// redisUsers are the users of Redis, with the namespace of each one's Secret.
var redisUsers = map[string]string{
	"activator":  servingNamespace,
	"agent":      agentNamespace,
	"controller": libraNamespace,
	"predictor":  libraNamespace,
	"scheduler":  libraNamespace,
	redisAdmin:   libraNamespace,
}

func redisSecretOf(user string) string { return "libra-redis-" + user }

// secureRedis makes a kustomization in dir give Redis TLS and users. Its Secrets are those on
// the cluster, or new ones if any is missing.
func (d *demo) secureRedis(ctx context.Context, dir string, k *kustomization) error {
	component, err := relativePath(dir, redisAuthManifests)
	if err != nil {
		return err
	}
	k.Components = []string{component}
	switch complete, err := d.hasRedisSecrets(ctx); {
	case err != nil:
		return err
	case complete:
		return nil
	}
	users, err := os.ReadFile(filepath.Join(redisAuthManifests, redisUsersFile))
	if err != nil {
		return err
	}
	secrets, err := newRedisSecrets(string(users))
	if err != nil {
		return err
	}
	const file = "secrets.yaml"
	var text strings.Builder
	for _, s := range secrets {
		data, err := yaml.Marshal(s)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n%s", data)
	}
	// Before the pods that mount them, which would start without the optional ones.
	k.Resources, k.SortOptions = []string{file}, &sortOptions{Order: "legacy"}
	return os.WriteFile(filepath.Join(dir, file), []byte(text.String()), 0o600)
}

// hasRedisSecrets reports whether all Secrets of a Redis with TLS and users exist. If only
// some do, an install was interrupted before anything mounted them.
func (d *demo) hasRedisSecrets(ctx context.Context) (bool, error) {
	wanted := map[string]string{redisUsersSecret: libraNamespace, redisTLSSecret: libraNamespace}
	for user, namespace := range redisUsers {
		wanted[redisSecretOf(user)] = namespace
	}
	for name, namespace := range wanted {
		if there, err := d.kubectl.exists(ctx, "-n", namespace, "secret", name); err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

// removeRedisUsers removes the users' Secrets, because parts would use them to log in to a
// Redis without users.
func (d *demo) removeRedisUsers(ctx context.Context) error {
	var errs []error
	for user, namespace := range redisUsers {
		_, err := d.kubectl.run(ctx, "-n", namespace, "delete", "--ignore-not-found", "secret", redisSecretOf(user))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// newRedisSecrets returns Secrets with Redis' certificate, from a CA that signs nothing else,
// Redis' users, and each user's password.
func newRedisSecrets(users string) ([]corev1.Secret, error) {
	host, _, err := net.SplitHostPort(redisconn.DefaultAddr)
	if err != nil {
		return nil, err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKeyWithOptions(certutil.SelfSignedCertKeyOptions{
		Host: host, AlternateDNS: []string{host + "." + clusterDomain}, MaxAge: certificateValidity,
	})
	if err != nil {
		return nil, err
	}
	_, ca := pem.Decode(cert) // its authority's follows
	var secrets []corev1.Secret
	secret := func(namespace, name string, kind corev1.SecretType, data map[string][]byte) {
		secrets = append(secrets, corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Type:       kind,
			Data:       data,
		})
	}
	users = strings.TrimRight(users, "\n") + fmt.Sprintf("\nuser %s %s\n", redisAdmin, redisAdminRules)
	for user, namespace := range redisUsers {
		password, line := rand.Text(), "user "+user+" "
		if strings.Count(users, line) != 1 {
			return nil, fmt.Errorf("%s/%s has %d lines that begin with %q, want one", redisAuthManifests, redisUsersFile, strings.Count(users, line), line)
		}
		users = strings.Replace(users, line, fmt.Sprintf("%s#%x ", line, sha256.Sum256([]byte(password))), 1)
		secret(namespace, redisSecretOf(user), corev1.SecretTypeOpaque, map[string][]byte{
			"username": []byte(user), "password": []byte(password), "ca.crt": ca,
		})
	}
	secret(libraNamespace, redisUsersSecret, corev1.SecretTypeOpaque, map[string][]byte{redisUsersFile: []byte(users)})
	secret(libraNamespace, redisTLSSecret, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, "ca.crt": ca,
	})
	return secrets, nil
}

// tellOfRedis has the activator use Redis with TLS, as its own user.
func tellOfRedis(pod *applycorev1.PodSpecApplyConfiguration) {
	const volume = "libra-redis"
	pod.Containers[0].WithEnv(
		variable("LIBRA_REDIS_ADDR", redisTLSAddress), variable("LIBRA_REDIS_CREDENTIALS", redisCredentials),
	).WithVolumeMounts(applycorev1.VolumeMount().WithName(volume).WithMountPath(redisCredentials).WithReadOnly(true))
	pod.WithVolumes(applycorev1.Volume().WithName(volume).WithSecret(
		applycorev1.SecretVolumeSource().WithSecretName(redisSecretOf("activator")).WithOptional(true)))
}

// redisCLI runs redis-cli in Redis' pod.
func (d *demo) redisCLI(ctx context.Context, args ...string) ([]byte, error) {
	run := call{timeout: 30 * time.Second, args: []string{"-n", libraNamespace, "exec"}}
	as := []string{"deployment/redis", "--", "redis-cli"}
	if d.redisAuth {
		var secret corev1.Secret
		if err := d.kubectl.get(ctx, &secret, "-n", libraNamespace, "secret", redisSecretOf(redisAdmin)); err != nil {
			return nil, err
		}
		// Not as an argument, which everybody on the node can see.
		run.stdin = strings.NewReader(string(secret.Data["password"]) + "\n")
		run.args = append(run.args, "-i")
		as = append(as, "--tls", "--cacert", "/etc/libra/tls/ca.crt", "--user", redisAdmin, "--askpass")
	}
	run.args = append(append(run.args, as...), args...)
	return d.kubectl.do(ctx, run)
}
