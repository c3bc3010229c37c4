package pool

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// textOfThisLibrary is the hash of what is in lua in the version thisLibrary.
const textOfThisLibrary = "9b1b38d23eced191ebb7a5ff59fbd298b400fbfcdc7ff8f3f1678ae67156914e"

// Parts of two releases share a Redis while one is upgraded to the other. With another text under the same version, one
// would call the other's functions.
func TestVersionIsRaisedWithTheText(t *testing.T) {
	if hash := fmt.Sprintf("%x", sha256.Sum256([]byte(libraryText))); hash != textOfThisLibrary {
		t.Errorf("what is in lua has changed: raise thisLibrary, then put this hash here: %s", hash)
	}
}
