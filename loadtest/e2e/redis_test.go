//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/redisconn"
)

const redisAdmin = "admin"

// redisAddress is Redis' for a process that has no search list, unlike those in pods.
const redisAddress = "redis.libra-system.svc.cluster.local:6379"

// redisServer is Redis as the tests use it, with a user of their own.
var redisServer redisconn.Server

// redisUsers has the users of the parts, each with where its pods are.
var redisUsers = map[string]struct{ namespace, selector string }{
	"activator":  {servingNamespace, "app=activator"},
	"agent":      {agentNamespace, "app=libra-agent"},
	"controller": {libraNamespace, resizerSelector},
	"predictor":  {libraNamespace, "serving.kserve.io/inferenceservice=libra"},
}

// useClusterDNS lets this process resolve the cluster's Services by the names that certificates have.
func useClusterDNS(ctx context.Context) error {
	node, err := kube.CoreV1().Nodes().Get(ctx, boxNode, metav1.GetOptions{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return fmt.Errorf("node %s has no address", boxNode)
	}
	server := net.JoinHostPort(node.Status.Addresses[i].Address, "53")
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
	return nil
}

// redisAs returns Redis for a user, whose Secret it writes into a folder.
func redisAs(ctx context.Context, namespace, user, folder string) (redisconn.Server, error) {
	secret, err := kube.CoreV1().Secrets(namespace).Get(ctx, "libra-redis-"+user, metav1.GetOptions{})
	if err != nil {
		return redisconn.Server{}, err
	}
	for name, data := range secret.Data {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			return redisconn.Server{}, err
		}
	}
	return redisconn.Parse("rediss://"+redisAddress, folder)
}

// redisClient returns a client that is closed at the end of the test.
func redisClient(t *testing.T, server redisconn.Server) redis.UniversalClient {
	t.Helper()
	c := server.NewClient(redisconn.Options{Connections: 1, Timeout: 5 * time.Second})
	t.Cleanup(func() { c.Close() })
	return c
}

// refusedRights returns what Redis refused its users since it started.
func refusedRights(ctx context.Context) (refused []string, err error) {
	admin := redisServer.NewClient(redisconn.Options{Connections: 1, Timeout: 5 * time.Second})
	defer admin.Close()
	entries, err := admin.ACLLog(ctx, 128).Result()
	for _, entry := range entries {
		// Connections that TestRedisWantsTLSAndAUser made have no user.
		if entry.Reason != "auth" {
			refused = append(refused, fmt.Sprintf("%s: %s, %d times (%s, %s)", entry.Username, entry.Object, entry.Count, entry.Reason, entry.Context))
		}
	}
	return refused, err
}

// Redis has no port without TLS, so that every client uses it. From each part's pods, only its user is
// connected.
func TestEachPartIsConnectedAsItsUser(t *testing.T) {
	ctx := t.Context()
	admin := redisClient(t, redisServer)
	for _, name := range []string{"port", "tls-port", "unixsocket"} {
		got, err := admin.ConfigGet(ctx, name).Result()
		if want := map[string]string{"port": "0", "tls-port": "6379", "unixsocket": ""}[name]; err != nil || got[name] != want {
			t.Errorf("Redis has the %s %q, %v, want %q", name, got[name], err, want)
		}
	}
	for user, part := range redisUsers {
		eventually(t, time.Minute, "connection of "+user, func() error {
			clients, err := admin.ClientList(ctx).Result()
			if err != nil {
				return err
			}
			// Listed after the clients, so that a pod which has just started is there.
			pods, err := kube.CoreV1().Pods(part.namespace).List(ctx, metav1.ListOptions{LabelSelector: part.selector})
			if err != nil {
				return err
			}
			addresses := map[string]string{}
			for _, p := range pods.Items {
				addresses[p.Status.PodIP] = p.Name
			}
			found := false
			for line := range strings.Lines(clients) {
				client := fieldsOf(line)
				host, _, err := net.SplitHostPort(client["addr"])
				if err != nil {
					return fmt.Errorf("a client is %q: %w", line, err)
				}
				switch pod := addresses[host]; {
				case client["user"] == user && pod == "" && idle(client) > time.Minute:
					// The pod's node is gone, and could not close the connection. A live part asks every
					// second.
				case client["user"] == user && pod == "":
					return fmt.Errorf("%s is connected as the user %s, and is none of its pods %v", host, user, addresses)
				case client["user"] == user:
					found = true
				// The user default is off: it is a connection on which nothing has been asked yet.
				case pod != "" && client["user"] != "default":
					t.Fatalf("%s is connected as the user %q", pod, client["user"])
				}
			}
			if !found {
				return fmt.Errorf("none of the pods %v is connected as it", addresses)
			}
			return nil
		})
	}
}

// fieldsOf returns the fields of a line of CLIENT LIST.
func fieldsOf(line string) map[string]string {
	fields := map[string]string{}
	for _, field := range strings.Fields(line) {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	return fields
}

// idle returns how long a client has asked nothing.
func idle(client map[string]string) time.Duration {
	seconds, err := strconv.Atoi(client["idle"])
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func TestRedisWantsTLSAndAUser(t *testing.T) {
	ctx := t.Context()
	// Redis must answer nothing without TLS.
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", redisAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_, err = connection.Write([]byte("PING\r\n"))
	if err := errors.Join(err, connection.SetDeadline(time.Now().Add(10*time.Second))); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(connection).ReadString('\n'); err == nil {
		t.Errorf("it answers %q without TLS", answer)
	}

	ask := func(change func(folder string) error) error {
		folder := t.TempDir()
		server, err := redisAs(ctx, libraNamespace, redisAdmin, folder)
		if err != nil {
			t.Fatal(err)
		}
		if err := change(folder); err != nil {
			t.Fatal(err)
		}
		return redisClient(t, server).Ping(ctx).Err()
	}
	if err := ask(func(string) error { return nil }); err != nil {
		t.Errorf("with TLS and a user: %v", err)
	}
	for want, change := range map[string]func(folder string) error{
		"NOAUTH": func(folder string) error {
			return errors.Join(os.Remove(filepath.Join(folder, "username")), os.Remove(filepath.Join(folder, "password")))
		},
		"WRONGPASS": func(folder string) error {
			return os.WriteFile(filepath.Join(folder, "password"), []byte("another"), 0o600)
		},
		"unknown authority": func(folder string) error { return os.Remove(filepath.Join(folder, "ca.crt")) },
	} {
		if err := ask(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}
