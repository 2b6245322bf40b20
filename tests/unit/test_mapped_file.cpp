#include "engine/base/mapped_file.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / ("keyhole-files-" + std::to_string(getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }
    std::vector<std::string> left_in_folder() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
        std::sort(names.begin(), names.end());
        return names;
    }
    fs::path folder_;
};

TEST_F(MappedFileTest, HoldsTheBytesEvenWhenTheFileIsReplaced) {
    const std::string first = std::string("a\0b\xff", 4) + std::string(100'000, 'x');
    write_text_file(folder_ / "f", first);
    const MappedFile mapped(folder_ / "f");
    ASSERT_EQ(mapped.bytes().size(), first.size());
    write_text_file(folder_ / "f", "second");
    EXPECT_TRUE(std::equal(first.begin(), first.end(), reinterpret_cast<const char*>(mapped.bytes().data())));
    EXPECT_EQ(read_text_file(folder_ / "f"), "second");
    EXPECT_EQ(left_in_folder(), std::vector<std::string>{"f"});
}

TEST_F(MappedFileTest, EmptyFilesAndMoves) {
    write_text_file(folder_ / "empty", "");
    EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
    EXPECT_EQ(read_text_file(folder_ / "empty"), "");
    write_text_file(folder_ / "full", "abc");
    MappedFile a(folder_ / "full"), b(folder_ / "empty");
    b = std::move(a);
    EXPECT_EQ(b.bytes().size(), 3u);
    const MappedFile c(std::move(b));
    EXPECT_EQ(static_cast<char>(c.bytes()[2]), 'c');
}

TEST_F(MappedFileTest, WhatCannotBeReadIsNamed) {
    for (const fs::path& path : {folder_ / "absent", folder_}) {
        try {
            MappedFile mapped(path);
            ADD_FAILURE() << path;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
        }
        EXPECT_THROW(read_text_file(path), Error);
    }
}

TEST_F(MappedFileTest, WhatCannotBeWrittenIsNamedAndLeavesNothing) {
    fs::create_directory(folder_ / "folder");
    for (const fs::path& path : {folder_ / "absent" / "f", folder_ / "folder"}) {
        try {
            write_text_file(path, "x");
            ADD_FAILURE() << path;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::io);
            EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
        }
    }
    EXPECT_EQ(left_in_folder(), std::vector<std::string>{"folder"});
}

TEST_F(MappedFileTest, PipesAreReadToTheirEnd) {
    const fs::path pipe = folder_ / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        std::ofstream(pipe) << std::string(200'000, 'p');
        ::_exit(0);
    }
    EXPECT_EQ(read_text_file(pipe), std::string(200'000, 'p'));
    EXPECT_THROW(MappedFile mapped(fs::path("/dev/null")), Error);
}

TEST_F(MappedFileTest, DevicesAreWrittenIntoNotReplaced) {
    write_text_file("/dev/null", "x");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

/// Pages of [data, data + size) that are in memory.
std::size_t resident_pages(void* data, std::size_t size) {
    std::vector<unsigned char> in_memory((size + 4095) / 4096);
    if (::mincore(data, size, in_memory.data()) != 0) return 0;  // not mapped
    return static_cast<std::size_t>(std::count_if(in_memory.begin(), in_memory.end(),
                                                  [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(Pages, AreZeroAlignedAndGivenBack) {
    constexpr std::size_t kSize = (std::size_t{4} << 20) + 12;
    void* where = nullptr;
    {
        const Pages pages(kSize);
        where = pages.data();
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(where) % 64, 0u);
        ASSERT_EQ(pages.as<float>().size(), kSize / 4);
        for (const float value : pages.as<float>()) ASSERT_EQ(value, 0.0f);
        std::fill(pages.as<float>().begin(), pages.as<float>().end(), 1.0f);
        EXPECT_EQ(resident_pages(where, kSize), (kSize + 4095) / 4096);
    }
    EXPECT_EQ(resident_pages(where, kSize), 0u);
}

TEST(Pages, MoveAndNothing) {
    Pages none(0);
    EXPECT_EQ(none.data(), nullptr);
    Pages some(100);
    void* const data = some.data();
    none = std::move(some);
    EXPECT_EQ(none.data(), data);
    EXPECT_EQ(none.size_bytes(), 100u);
    const Pages other(std::move(none));
    EXPECT_EQ(other.data(), data);
}

TEST(Pages, TooMuchIsAnError) {
    try {
        const Pages pages(std::numeric_limits<std::size_t>::max() / 2);
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::no_memory);
    }
}

}  // namespace
}  // namespace keyhole
