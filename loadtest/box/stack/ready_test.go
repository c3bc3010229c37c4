package stack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWaitReady(t *testing.T) {
	tries := 0
	late := check{"late", func(context.Context, applier) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	}}
	if err := (applier{}).waitReady(context.Background(), []check{late}, time.Minute, t.Logf); err != nil {
		t.Fatal(err)
	}
	if tries != 3 {
		t.Errorf("tried %d times, want 3: once more than it failed", tries)
	}
}

func TestWaitReadyNamesWhatIsNot(t *testing.T) {
	checks := []check{
		{"deployment a/good", func(context.Context, applier) error { return nil }},
		{"deployment a/bad", func(context.Context, applier) error { return errors.New("0 of 1 replicas available") }},
	}
	err := (applier{}).waitReady(context.Background(), checks, time.Millisecond, t.Logf)
	if err == nil || !strings.Contains(err.Error(), "a/bad: 0 of 1") || strings.Contains(err.Error(), "a/good") {
		t.Errorf("waitReady() = %v, want an error that names a/bad alone", err)
	}
}

func TestNotYet(t *testing.T) {
	things := schema.GroupResource{Group: "example.com", Resource: "things"}
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"kind not defined", &meta.NoKindMatchError{}, true},
		{"not found", apierrors.NewNotFound(things, "a"), true},
		{"webhook not served", apierrors.NewInternalError(errors.New("failed calling webhook")), true},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{}, "a", nil), false},
		{"forbidden", apierrors.NewForbidden(things, "a", nil), false},
		{"webhook refuses", apierrors.NewBadRequest("validation failed"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := notYet(tt.err); got != tt.want {
				t.Errorf("notYet(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
}
