from longwatch.mailbox.limits import MailboxLimits as MailboxLimits
from longwatch.mailbox.mailbox import Mailbox as Mailbox
from longwatch.mailbox.message import Message as Message
from longwatch.mailbox.message import SettleResult as SettleResult
from longwatch.mailbox.url import open_mailbox as open_mailbox
from longwatch.mailbox.url import open_store as open_store
