package pool

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// textOfThisLibrary is the hash of what is in lua in the version thisLibrary.
const textOfThisLibrary = "471f6cb614fb5aa91022211fed8ca0f38b9c4d9a910a0bfc28a319e28712aa7c"

// Parts of two releases share a Redis while one is upgraded to the other. With another text under the same version, one
// would call the other's functions.
func TestVersionIsRaisedWithTheText(t *testing.T) {
	if hash := fmt.Sprintf("%x", sha256.Sum256([]byte(libraryText))); hash != textOfThisLibrary {
		t.Errorf("what is in lua has changed: raise thisLibrary, then put this hash here: %s", hash)
	}
}
