package pool

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// library is a version of the Redis functions. Versions live side by side in a Redis, so that
// parts of two versions work during an upgrade and a rollback: the names of the functions and of a
// node's keys contain the version.
type library int

// thisLibrary must be raised with each change of what is in lua.
const thisLibrary library = 39

// Names of a node's keys. The functions get the first, and make the others from it.
const (
	epochKey   = "node"
	intentsKey = "intents"
	eventsKey  = "events" // ranked invocations that have begun, and all that have ended
)

func (l library) name() string { return "libra" + strconv.Itoa(int(l)) }

func (l library) function(name string) string { return l.name() + "_" + name }

// key returns one of a node's keys. All begin alike, with a hash tag, so that a Redis Cluster
// keeps them together.
func (l library) key(node, name string) string {
	return "libra:{" + node + "}:" + strconv.Itoa(int(l)) + ":" + name
}

//go:embed lua/*.lua
var libraryFiles embed.FS

var libraryText = joinFiles(libraryFiles)

func (l library) source() string {
	return fmt.Sprintf("#!lua name=%s\nlocal VERSION = '%d'\n%s", l.name(), l, libraryText)
}

func joinFiles(files fs.FS) string {
	names, err := fs.Glob(files, "lua/*.lua")
	if err != nil {
		panic(err) // the pattern is well formed
	}
	var joined strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic(err) // it is in the binary
		}
		joined.Write(text)
	}
	return joined.String()
}

// deleteOlder deletes the libraries older than the previous version. A process that still uses one
// loads it again. One that cannot be deleted costs some memory, and nobody waits for it: the next
// version tries again.
func (l library) deleteOlder(ctx context.Context, client redis.UniversalClient) {
	loaded, err := client.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: "libra*"}).Result()
	if err != nil {
		return
	}
	for _, other := range loaded {
		if version, ok := versionOf(other.Name); ok && version < l-1 {
			client.FunctionDelete(ctx, other.Name)
		}
	}
}

// versionOf returns the version of a library, and whether the library is ours.
func versionOf(name string) (library, bool) {
	digits, ours := strings.CutPrefix(name, "libra")
	version, err := strconv.Atoi(digits)
	return library(version), ours && err == nil
}
