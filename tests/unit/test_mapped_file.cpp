#include "engine/base/index.h"
#include "engine/base/mapped_file.h"

#include "engine/base/error.h"
#include "engine/base/make_folder.h"
#include "engine/base/reserved_pages.h"
#include "engine/base/utf8.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole::test_mapped_file {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
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

TEST_F(MappedFileTest, PipesOfTheUsersTextsAreReadToTheirEnd) {
    const fs::path pipe = folder_ / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        std::ofstream(pipe) << std::string(200'000, 'p');
        ::_exit(0);
    }
    EXPECT_EQ(read_text_input(pipe), std::string(200'000, 'p'));
    ::waitpid(child, nullptr, 0);
}

// An open of a pipe without a writer would block, and /dev/zero never ends.
TEST_F(MappedFileTest, PipesAndDevicesAreRefused) {
    const fs::path pipe = folder_ / "pipe", zeros = folder_ / "zeros";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    fs::create_symlink("/dev/zero", zeros);
    for (const auto& [path, kind] : {std::pair(pipe, "a pipe"), {zeros, "a device"}, {folder_, "a folder"}}) {
        const auto expect_refused = [&, path = path, kind = std::string(kind)](const auto& read) {
            try {
                read(path);
                ADD_FAILURE() << path;
            } catch (const Error& error) {
                const std::string message = error.what();
                EXPECT_EQ(error.code(), ErrorCode::bad_file);
                EXPECT_NE(message.find(path.string()), std::string::npos) << message;
                EXPECT_NE(message.find(kind), std::string::npos) << message;
            }
        };
        expect_refused([](const fs::path& p) { check_ordinary_file(p); });
        expect_refused([](const fs::path& p) { read_text_file(p); });
        expect_refused([](const fs::path& p) { MappedFile mapped(p); });
        if (path != pipe) expect_refused([](const fs::path& p) { read_text_input(p); });
    }
}

TEST_F(MappedFileTest, LargerTextsThanTheReaderTakesAreNotRead) {
    std::ofstream(folder_ / "f") << "0123456789";
    EXPECT_EQ(read_text_file(folder_ / "f", 10), "0123456789");
    for (const auto read : {read_text_file, read_text_input}) {
        try {
            read(folder_ / "f", 9);
            ADD_FAILURE();
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("more than the 9 bytes"), std::string::npos)
                << error.what();
        }
    }
    // A hole of 1 TiB takes no disk space.
    std::ofstream(folder_ / "hole").close();
    fs::resize_file(folder_ / "hole", std::uintmax_t{1} << 40);
    EXPECT_THROW(read_text_file(folder_ / "hole"), Error);
}

TEST_F(MappedFileTest, DevicesAreWrittenIntoNotReplaced) {
    write_text_file("/dev/null", "x");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(MappedFileTest, ReplacingKeepsPermissionsAndLinks) {
    const fs::path file = folder_ / "settings.json", link = folder_ / "link.json";
    write_text_file(file, "old", Durability::sync);
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
    fs::create_symlink("settings.json", link);
    write_text_file(link, "new", Durability::sync);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(read_text_file(file), "new");
    EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_EQ(left_in_folder(), (std::vector<std::string>{"link.json", "settings.json"}));
}

TEST_F(MappedFileTest, AFullDiskKeepsTheOldFile) {
    const fs::path file = folder_ / "notes.json";
    write_text_file(file, "old");
    // Writes beyond the file-size limit fail as on a full disk.
    const pid_t child = ::fork();
    if (child == 0) {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{1000, 1000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
            write_text_file(file, std::string(2000, 'x'));
        } catch (const Error& error) {
            ::_exit(error.code() == ErrorCode::io ? 7 : 1);
        }
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(read_text_file(file), "old");
    EXPECT_EQ(left_in_folder(), std::vector<std::string>{"notes.json"});
    EXPECT_THROW(write_text_file("/dev/full", "x"), Error);
}

/// Returns how many pages of [data, data + size) are in memory.
std::size_t resident_pages(void* data, std::size_t size) {
    std::vector<unsigned char> in_memory((size + 4095) / 4096);
    if (::mincore(data, size, in_memory.data()) != 0) return 0;  // not mapped
    return to_index(std::count_if(in_memory.begin(), in_memory.end(),
                                  [](unsigned char page) { return (page & 1) != 0; }));
}

TEST_F(MappedFileTest, ALinkToNowhereGetsItsFileAndStaysALink) {
    fs::create_symlink("second", folder_ / "first");
    fs::create_symlink(folder_ / "file", folder_ / "second");
    EXPECT_EQ(behind_links(folder_ / "first"), folder_ / "file");
    write_text_file(folder_ / "first", "text");
    EXPECT_EQ(read_text_file(folder_ / "file"), "text");
    write_text_file(folder_ / "first", "more");
    EXPECT_TRUE(fs::is_symlink(folder_ / "first") && fs::is_symlink(folder_ / "second"));
    EXPECT_EQ(read_text_file(folder_ / "file"), "more");
    fs::create_symlink("circle", folder_ / "circle");
    const auto refusal = [&](const fs::path& file) -> std::string {
        try {
            write_text_file(file, "x");
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::io);
            return error.what();
        }
        return {};
    };
    EXPECT_NE(refusal(folder_ / "circle").find("circle"), std::string::npos);
    EXPECT_TRUE(fs::is_symlink(folder_ / "circle"));
    fs::create_symlink(folder_ / "none" / "file", folder_ / "far");
    EXPECT_NE(
        refusal(folder_ / "far").find("a link to " + (folder_ / "none/file").string() + ": No such file"),
        std::string::npos);
}

TEST_F(MappedFileTest, AFolderThatCannotBeMadeSaysWhatIsInTheWay) {
    const auto refusal = [&](const fs::path& folder) -> std::string {
        try {
            make_folder(folder, "the sweep");
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    };
    EXPECT_EQ(refusal(folder_ / "a/b"), "");
    EXPECT_EQ(refusal(folder_ / "a/b"), "") << "it is there";
    write_text_file(folder_ / "file", "x");
    fs::create_symlink(folder_ / "nowhere", folder_ / "link");
    fs::create_symlink(folder_ / "a", folder_ / "good");
    EXPECT_EQ(refusal(folder_ / "good/c"), "");
    const std::string begin = "cannot make the folder " + folder_.string();
    EXPECT_EQ(refusal(folder_ / "file/b"), begin + "/file/b for the sweep: " + (folder_ / "file").string() +
                                               " is no folder; move it away or name another folder");
    EXPECT_EQ(refusal(folder_ / "link"), begin + "/link for the sweep: " + (folder_ / "link").string() +
                                             " is a link to " + (folder_ / "nowhere").string() +
                                             ", which is not there; remove the link or name another folder");
    EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

TEST_F(MappedFileTest, TextsOfPeopleAreNotUtf16) {
    using namespace std::string_view_literals;
    const std::pair<std::string_view, std::string_view> cases[] = {
        {"\xff\xfeH\0i\0"sv, "UTF-16LE"},
        {"\xfe\xff\0H\0i"sv, "UTF-16BE"},
        {"\xff\xfe"sv, "UTF-16LE"},
        {"H\0i\0"sv, "UTF-16LE"},
        {"\0H\0i"sv, "UTF-16BE"},
        {"W\0i\0r\0 \0k\0a\0u\0f\0e\0n\0 \0\x1c\x20"sv, "UTF-16LE"},
        {"\xff\xfe\0\0H\0\0\0"sv, "UTF-32LE"},
        {"\0\0\xfe\xff\0\0\0H"sv, "UTF-32BE"},
        {"H\0\0\0i\0\0\0"sv, "UTF-32LE"},
        {"\0\0\0H\0\0\0i"sv, "UTF-32BE"},
        {""sv, ""},
        {"Hi"sv, ""},
        {"\xef\xbb\xbfHi"sv, ""},
        {"Caf\xe9"sv, ""},
        {"a\0b and then a text\0"sv, ""},
        {"\0\0\0\0\0\0\0\0"sv, ""},
        {"\xff\xff\xfe\xfe"sv, ""}};
    for (const auto& [bytes, encoding] : cases) {
        EXPECT_EQ(wide_encoding(bytes), encoding) << bytes;
        write_text_file(folder_ / "t", bytes);
        try {
            EXPECT_EQ(read_text_input(folder_ / "t"), bytes);
            EXPECT_EQ(encoding, "");
        } catch (const Error& error) {
            const std::string said = error.what();
            EXPECT_EQ(
                said.find("cannot read " + (folder_ / "t").string() + ": it is " + std::string(encoding)), 0u)
                << said;
            EXPECT_NE(said.find("iconv -f UTF-"), std::string::npos) << said;
        }
    }
    EXPECT_NE(wide_encoding_fault("\xff\xfeH\0"sv).find("-f UTF-16 -t"), std::string::npos)
        << "takes the mark";
    EXPECT_NE(wide_encoding_fault("H\0i\0"sv).find("-f UTF-16LE -t"), std::string::npos);
    EXPECT_EQ(find_invalid_utf8("ab\xc3\xa9"), std::string_view::npos);
    EXPECT_EQ(find_invalid_utf8("ab\xc3"), 2u);
    EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0u);
}

TEST(Pages, ReservedOnesTakeNothingUntilTheyAreTaken) {
    constexpr std::size_t kSize = (std::size_t{64} << 20) + 5;
    ReservedPages pages(kSize, "a copy");
    EXPECT_EQ(resident_pages(const_cast<void*>(pages.address()), kSize), 0u);
    auto* data = static_cast<char*>(pages.take());
    ASSERT_EQ(data, pages.address());
    EXPECT_EQ(data[kSize - 1], 0);
    data[kSize - 1] = 1;
    ReservedPages moved(std::move(pages));
    EXPECT_EQ(static_cast<const char*>(moved.address())[kSize - 1], 1);
    try {
        ReservedPages(std::numeric_limits<std::size_t>::max() / 2, "a copy of T");
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::no_memory);
        EXPECT_NE(std::string(error.what()).find("a copy of T"), std::string::npos) << error.what();
    }
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
}  // namespace keyhole::test_mapped_file
