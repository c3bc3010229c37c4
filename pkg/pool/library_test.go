package pool

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// textOfThisLibrary is the hash of what is in lua in the version thisLibrary.
const textOfThisLibrary = "a096e0f240cfa2a8b054ae720572491d89f69445df2271285b77bcdc686ff51b"

// Parts of two releases share a Redis while one is upgraded to the other. With another text under the same version, one
// would call the other's functions.
func TestVersionIsRaisedWithTheText(t *testing.T) {
	if hash := fmt.Sprintf("%x", sha256.Sum256([]byte(libraryText))); hash != textOfThisLibrary {
		t.Errorf("what is in lua has changed: raise thisLibrary, then put this hash here: %s", hash)
	}
}
