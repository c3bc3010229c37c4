package dist

import (
	"bytes"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
)

var predictor = ImageComponents{
	Name: "libra-predictor", Architecture: "arm64", Digest: "sha256:" + strings.Repeat("a", 64),
	Components: []Component{
		{Type: "deb", Name: "libstdc++6", Version: "1:12.2.0-14+deb12u1", Architecture: "arm64"},
		{Type: "golang", Name: "github.com/CycloneDX/cyclonedx-go", Version: "v0.12.0"},
		{Type: "pypi", Name: "Typing_Extensions", Version: "4.14.0"},
		{Type: "pypi", Name: "Typing_Extensions", Version: "4.14.0"},
	},
}

func TestSBOMIsCycloneDX(t *testing.T) {
	data, err := predictor.sbom("0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := predictor.sbom("0.1.0"); err != nil || !bytes.Equal(data, again) {
		t.Errorf("it differs from itself (%v)", err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	// The specification requires this of a document and of each component.
	if bom.BOMFormat != "CycloneDX" || bom.SpecVersion != cdx.SpecVersion1_6 || bom.Version != 1 {
		t.Errorf("it is %s %s, version %d", bom.BOMFormat, bom.SpecVersion, bom.Version)
	}
	if c := bom.Metadata.Component; c.Type != cdx.ComponentTypeContainer || c.Name != "libra-predictor" || c.Version != "0.1.0" {
		t.Errorf("it is of %+v", c)
	}
	var got []string
	refs := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		if c.Type == "" || c.Name == "" || refs[c.BOMRef] {
			t.Errorf("a component is without a type, a name or a reference of its own: %+v", c)
		}
		refs[c.BOMRef] = true
		got = append(got, c.PackageURL)
	}
	want := []string{
		"pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bdeb12u1?arch=arm64",
		"pkg:golang/github.com/cyclonedx/cyclonedx-go@v0.12.0",
		"pkg:pypi/typing-extensions@4.14.0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("its package URLs (-want +got):\n%s", diff)
	}
}

func TestSBOMRefusesWhatItDoesNotKnow(t *testing.T) {
	for want, c := range map[string]Component{
		`of type "rpm"`:  {Type: "rpm", Name: "bash", Version: "5"},
		`the version ""`: {Type: "deb", Name: "bash"},
	} {
		i := predictor
		i.Components = []Component{c}
		if _, err := i.sbom("0.1.0"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), i.Name) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	if _, err := (ImageComponents{Name: "empty", Architecture: "amd64", Digest: "sha256:0"}).sbom("0.1.0"); err == nil {
		t.Error("an image without components is described")
	}
}
