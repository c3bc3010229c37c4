package pool

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// textOfThisLibrary is the hash of what is in lua in the version thisLibrary.
const textOfThisLibrary = "d46455672751b34a2e2e3b4e766ae3168c16f11e2361295f094bb52a9f668ca7"

// Parts of two releases share a Redis while one is upgraded to the other. With another text under the same version, one
// would call the other's functions.
func TestVersionIsRaisedWithTheText(t *testing.T) {
	if hash := fmt.Sprintf("%x", sha256.Sum256([]byte(libraryText))); hash != textOfThisLibrary {
		t.Errorf("what is in lua has changed: raise thisLibrary, then put this hash here: %s", hash)
	}
}
