#include "engine/base/large_pages.h"
#include "engine/base/mapped_file.h"

#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace keyhole::test_large_pages {
namespace {

constexpr std::size_t kWords = (9 << 20) / sizeof(std::uint32_t);

std::filesystem::path file_of_words(const std::filesystem::path& folder) {
    std::vector<std::uint32_t> words(kWords);
    for (std::size_t i = 0; i < kWords; ++i) words[i] = static_cast<std::uint32_t>(i * 2654435761u);
    const std::filesystem::path path = folder / "words";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(kWords * sizeof(std::uint32_t)));
    return path;
}

std::size_t first_wrong_word(std::span<const std::byte> bytes) {
    for (std::size_t i = 0; i < kWords; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
        if (word != static_cast<std::uint32_t>(i * 2654435761u)) return i;
    }
    return kWords;
}

TEST(LargePages, WholePagesAreTheAlignedInside) {
    alignas(64) static std::byte memory[64];
    EXPECT_TRUE(whole_large_pages(memory).empty());
    const Pages pages(5 * kLargePage + 4096);
    const auto whole = whole_large_pages(pages.as<const std::byte>());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(whole.data()) % kLargePage, 0u);
    EXPECT_EQ(whole.size() % kLargePage, 0u);
    EXPECT_GE(whole.size(), 4 * kLargePage);
    EXPECT_GE(whole.data(), pages.data());
    EXPECT_LE(whole.data() + whole.size(), pages.as<const std::byte>().data() + pages.size_bytes());
}

TEST(LargePages, AMappedFileKeepsAddressesAndBytes) {
    const reference::TempFolder folder("large-pages");
    const std::filesystem::path path = file_of_words(folder.path());
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    if (!move_to_large_pages(bytes)) GTEST_SKIP() << "this system gives no large pages";
    EXPECT_EQ(file.bytes().data(), bytes.data());
    EXPECT_EQ(first_wrong_word(bytes), kWords);
    // What was moved no longer depends on the file.
    std::filesystem::resize_file(path, 0);
    const auto whole = whole_large_pages(bytes);
    std::uint32_t word = 0;
    std::memcpy(&word, whole.data(), sizeof word);
    const auto index = static_cast<std::size_t>(whole.data() - bytes.data()) / sizeof word;
    EXPECT_EQ(word, static_cast<std::uint32_t>(index * 2654435761u));
    EXPECT_TRUE(move_to_large_pages(whole));  // once more changes nothing
}

TEST(LargePages, ReadersMeanwhileSeeTheSameBytes) {
    const reference::TempFolder folder("large-pages");
    const MappedFile file(file_of_words(folder.path()));
    std::atomic<bool> stop{false};
    std::atomic<std::size_t> wrong{kWords};
    std::thread reader([&] {
        while (!stop)
            if (const std::size_t at = first_wrong_word(file.bytes()); at != kWords) wrong = at;
    });
    bool moved = true;
    for (int i = 0; i < 20 && moved; ++i) moved = move_to_large_pages(file.bytes());
    stop = true;
    reader.join();
    EXPECT_EQ(wrong, kWords);
    if (!moved) GTEST_SKIP() << "this system gives no large pages";
}

}  // namespace
}  // namespace keyhole::test_large_pages
