/// What reading a run may take, in proportion to its file: compressed or nested, a small file can ask for any
/// amount of memory and time. One reader, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace keyhole {

class ReadBudget {
  public:
    /// Runs of Keyhole stay far below: their text grows by a factor of about ten when it is read, and arrays
    /// hardly at all.
    static constexpr std::uint64_t kBytes = std::uint64_t{128} << 20, kBytesOfAByte = 64;
    static constexpr std::uint64_t kPlaces = std::uint64_t{1} << 32, kPlacesOfAByte = 1 << 13;

    /// name: the file's, of n_bytes.
    ReadBudget(std::string name, std::uint64_t n_bytes)
        : name_(std::move(name)),
          bytes_left_(kBytes + n_bytes * kBytesOfAByte),
          places_left_(kPlaces + n_bytes * kPlacesOfAByte) {}

    /// Memory, before it is allocated. Throws Error(bad_file) naming the file and `what` when that is more
    /// than is left.
    void take(std::uint64_t n_bytes, std::string_view what);
    /// Values to be looked at, before they are. Throws as take.
    void look(std::uint64_t n_places, std::string_view what);

  private:
    std::string name_;
    std::uint64_t bytes_left_, places_left_;
};

}  // namespace keyhole
