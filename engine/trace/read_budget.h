/// Limits the memory and time that reading a run may take, in proportion to the size of its file. Without a
/// limit, a small file that is compressed or nested could ask for any amount. Used by one reader, on one
/// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace keyhole {

class ReadBudget {
  public:
    /// Files written by Keyhole stay far below these limits: their text grows about tenfold when it is
    /// parsed, and their arrays hardly grow.
    static constexpr std::uint64_t kBytes = std::uint64_t{128} << 20, kBytesOfAByte = 64;
    static constexpr std::uint64_t kPlaces = std::uint64_t{1} << 32, kPlacesOfAByte = 1 << 13;

    /// name: the file's name, for messages. n_bytes: the file's size.
    ReadBudget(std::string name, std::uint64_t n_bytes)
        : name_(std::move(name)),
          bytes_left_(kBytes + n_bytes * kBytesOfAByte),
          places_left_(kPlaces + n_bytes * kPlacesOfAByte) {}

    /// Takes memory from the budget; call it before allocating. Throws Error(bad_file), naming the file and
    /// `what`, if less is left.
    void take(std::uint64_t n_bytes, std::string_view what);
    /// Takes values to be visited from the budget; call it before visiting them. Throws like take().
    void look(std::uint64_t n_places, std::string_view what);

  private:
    std::string name_;
    std::uint64_t bytes_left_, places_left_;
};

}  // namespace keyhole
