package image

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// machines maps the architectures that there are images for to the machine in the ELF header of
// their programs.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// Index is the same image for several architectures, one Image each.
type Index []Image

// ContentID is like that of an Image. An index of one image has the ID of that image.
func (x Index) ContentID() (string, error) {
	ids := make([]string, 0, len(x))
	for _, i := range x {
		id, err := i.ContentID()
		if err != nil {
			return "", err
		}
		ids = append(ids, id)
	}
	if len(ids) == 1 {
		return ids[0], nil
	}
	sum := sha256.Sum256([]byte(strings.Join(ids, " ")))
	return hex.EncodeToString(sum[:])[:12], nil
}

// Push sends the images to a registry, with compressed layers and the credentials of the user's
// own Docker configuration, and returns their reference by digest. It refuses an image that
// contains a program for another architecture.
func (x Index) Push(ctx context.Context, as string) (reference string, err error) {
	tag, err := name.NewTag(as)
	if err != nil {
		return "", err
	}
	index, err := x.OCI(nil)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", as, err)
	}
	if err := write(ctx, tag, index); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return tag.Digest(digest.String()).String(), nil
}

// write sends an index to a registry, with the credentials of the user's own Docker configuration.
func write(ctx context.Context, tag name.Tag, index v1.ImageIndex) error {
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	return nil
}

// checkPrograms returns an error if the image contains a program or a library, whatever its name,
// for an architecture other than the image's.
func (i Image) checkPrograms() error {
	config, err := i.local.ConfigFile()
	if err != nil {
		return err
	}
	machine, ok := machines[config.Architecture]
	if !ok {
		return fmt.Errorf("an image for %s: want one for amd64 or arm64", config.Architecture)
	}
	for _, l := range i.layers {
		if err := l.files(func(name string, content *io.SectionReader) error {
			var head [20]byte // an ELF header has the machine in it
			if _, err := content.ReadAt(head[:], 0); err != nil || string(head[:4]) != elf.ELFMAG {
				return nil
			}
			// All architectures that we have images for are little-endian.
			if got := elf.Machine(binary.LittleEndian.Uint16(head[18:])); got != machine {
				return fmt.Errorf("%s is for %v, want %v", name, got, machine)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("an image for %s: %w", config.Architecture, err)
		}
	}
	return nil
}
