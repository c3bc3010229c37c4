package image

import (
	"debug/elf"
	"encoding/binary"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// programImage is an image for arch that contains the head of a program for machine.
func programImage(t *testing.T, arch string, machine elf.Machine) Image {
	t.Helper()
	dir := t.TempDir()
	program := make([]byte, 64)
	copy(program, elf.ELFMAG)
	binary.LittleEndian.PutUint16(program[18:], uint16(machine))
	for name, content := range map[string][]byte{"run": program, "short": []byte("x"), "script": []byte("#!/bin/sh\necho something\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), Copy{From: dir, To: "/opt"})
	if err != nil {
		t.Fatal(err)
	}
	img, err := New(Config{Architecture: arch, User: NonRoot, Entrypoint: []string{"/opt/run"}}, l)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPush(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	both := Index{programImage(t, "amd64", elf.EM_X86_64), programImage(t, "arm64", elf.EM_AARCH64)}
	for _, x := range []Index{both, both[:1]} {
		as := strings.TrimPrefix(s.URL, "http://") + "/libra/app:1"
		reference, err := x.Push(t.Context(), as)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := name.NewDigest(reference)
		if err != nil {
			t.Fatalf("%s is not by digest: %v", reference, err)
		}
		if index, err := remote.Index(digest); err != nil || digestOf(t, index) != digest.DigestStr() {
			t.Errorf("of %d architectures the registry has no index %s (%v)", len(x), digest.DigestStr(), err)
		}
		whole, err := x.ContentID()
		if err != nil {
			t.Fatal(err)
		}
		// Nodes of each architecture take their own image of those that the digest names.
		for i, arch := range []string{"amd64", "arm64"}[:len(x)] {
			img, err := remote.Image(digest, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
			if err != nil {
				t.Fatal(err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Architecture != arch {
				t.Errorf("a node of %s gets an image for %s", arch, config.Architecture)
			}
			id, err := img.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			want := contentID(t, x[i])
			if id.Hex[:12] != want {
				t.Errorf("the image for %s has the content id %s, want %s", arch, id.Hex[:12], want)
			}
			if (whole == want) != (len(x) == 1) {
				t.Errorf("the index of %d images has the content id %s, and that for %s %s", len(x), whole, arch, want)
			}
		}
	}
}

func TestPushRefusesOtherPrograms(t *testing.T) {
	tests := []struct {
		name    string
		image   Image
		wantErr string
	}{
		{"another machine", programImage(t, "arm64", elf.EM_X86_64), "an image for arm64: /opt/run is for EM_X86_64, want EM_AARCH64"},
		{"an unknown architecture", programImage(t, "riscv64", elf.EM_RISCV), "an image for riscv64: want one for amd64 or arm64"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Index{tc.image}.Push(t.Context(), "localhost:1/libra/app:1")
			if err == nil || !strings.HasSuffix(err.Error(), tc.wantErr) {
				t.Errorf("Push() error = %v, want %q", err, tc.wantErr)
			}
		})
	}
}
