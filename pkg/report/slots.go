package report

import "time"

// SlotTime is how long a slot lasts, by the clock of the part that counts. What a part has counted in a
// slot is one field of the slot's hash in Redis, and is always written whole: however often it is sent,
// and in whatever order, it counts once.
const SlotTime = time.Minute

// Slots is how many slots make a window, including the one that has not ended.
const Slots = 10

// Keep is how long Redis keeps a slot after the last write.
const Keep = (Slots + 2) * SlotTime

// Slot is a number of SlotTimes since 1970.
type Slot int64

// SlotOf returns the slot of a time.
func SlotOf(t time.Time) Slot { return Slot(t.Unix() / int64(SlotTime/time.Second)) }

// Begin returns when the slot begins.
func (s Slot) Begin() time.Time { return time.Unix(int64(s)*int64(SlotTime/time.Second), 0) }
